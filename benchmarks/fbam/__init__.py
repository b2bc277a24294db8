"""Action models: gradient, memory and cost of streaming, replay of recordings, and what each integrator learns."""

"""How well a model does on tasks: sampled, counted, compared and used to choose what to train on."""

"""Views of a run for people: live page, status, plots, summary, rollouts."""

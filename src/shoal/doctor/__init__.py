"""`shoal doctor`: whether this machine is fit for a run, and one report for machines that nobody here has."""

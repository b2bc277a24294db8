"""Names of the computations that files are compared with, for those who draw among them and compute nothing."""

INT8, FP8 = "int8 weights", "fp8 weights"
OLDER = "older version"

"""Exams that models are compared by (AIME, GPQA, IFEval, LiveCodeBench), judged as their reference scorers judge."""

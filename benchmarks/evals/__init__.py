"""Verdicts of our exams against those of their reference scorers, answer by answer."""

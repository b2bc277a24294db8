"""Generation: from a lease to a submission, with seeded sampling, log-probs and TOPLOC proofs."""

"""What goes between machines: leases, submissions, verdicts, run cards, and the interfaces that roles work against."""

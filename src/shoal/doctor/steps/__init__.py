"""The steps of a report: what could not be run where Shoal was written, each as one function of a `Context`."""

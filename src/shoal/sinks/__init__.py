"""Where metrics go besides a run's own files: TensorBoard, Weights & Biases, trackio, Prometheus."""

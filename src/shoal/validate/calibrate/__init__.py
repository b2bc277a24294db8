"""`shoal calibrate`: what honest machines differ by, measured; thresholds in float32, honest rates in bfloat16."""

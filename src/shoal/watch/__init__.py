"""What a run says about itself: metrics and status on disk, and the views people read them in."""

"""What a worker tells of itself: metrics, HTTP pages, health and logs."""

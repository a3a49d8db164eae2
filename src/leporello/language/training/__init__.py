"""Training: batches, updates, schedules, several processes, progress, and the loop that joins them."""

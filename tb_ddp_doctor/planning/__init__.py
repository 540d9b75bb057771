"""What the step would be if something about the job were otherwise, predicted by playing its steps again."""

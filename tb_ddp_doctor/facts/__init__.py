"""What can be known of a job, on demand: rules ask for what functions marked with `@fact` make, by its type."""

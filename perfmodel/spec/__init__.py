"""What people write: hardware, models, workloads, parallel configurations."""

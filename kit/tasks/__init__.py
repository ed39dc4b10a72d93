"""One package per task: what it does to data, model and loss. All else is the same for every task."""

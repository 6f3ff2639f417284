"""`fairbed core`: whether groups of devices would gain by leaving a finished run."""

"""What the dashboard draws: boxes of lines, from one frozen view."""

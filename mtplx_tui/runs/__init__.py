"""Measurements that run beside the screens: each in a process of its own, its result kept for comparison."""

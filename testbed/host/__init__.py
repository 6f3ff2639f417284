"""The machine that emulates: its speed, its contention, its child processes and its clock."""

"""What every broker of Fairbed is configured with: users, their rights, the text of its files."""

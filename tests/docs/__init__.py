"""The pages in docs/ do what they show."""

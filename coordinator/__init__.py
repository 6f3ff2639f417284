"""The coordinator: decides who trains, merges what comes back, remembers and shows it."""

"""The control room: a pure view of the store, and screens that show it."""

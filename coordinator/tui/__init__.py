"""The control room: a pure view of the run store, and the screens that show it."""

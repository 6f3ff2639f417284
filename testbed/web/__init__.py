"""The control room in a browser: one web server, one control room in a child for each page."""

"""How long the next exchange of each device will take."""

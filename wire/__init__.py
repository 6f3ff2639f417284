"""The protocol between coordinator and devices: messages, encodings, transfers and transports."""

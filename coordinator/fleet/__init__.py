"""The devices of a run: membership, agreed codecs, uploads."""

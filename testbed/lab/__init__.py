"""A lab: a broker that stays, its certificates and the identities of devices and persons."""

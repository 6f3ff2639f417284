"""`fairbed shape`: runs any command on an emulated device."""

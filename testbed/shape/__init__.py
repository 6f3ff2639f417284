"""`fairbed shape`: any command as the guest of an emulated device."""

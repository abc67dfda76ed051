"""What tests of Shoal, and of strategies written elsewhere, are built from."""

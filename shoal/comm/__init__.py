"""Groups of workers and what moves bytes between them."""

"""Ways of making gradients and differences small before they are sent."""

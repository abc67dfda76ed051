"""Durable state: written whole or not at all, checked before it is believed."""

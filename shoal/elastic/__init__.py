"""Membership that changes while training goes on."""

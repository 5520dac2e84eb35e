"""Transports: how members and streams speak to each other, directly, without the master."""

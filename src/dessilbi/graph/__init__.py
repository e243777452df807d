"""The structure of a network: operations, channels, what must leave together."""

"""The seat's use-cases, the same for agents, people and scripts."""

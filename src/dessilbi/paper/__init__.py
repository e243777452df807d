"""The paper, reproduced: its tables and figures as recipes, and its numbers as data."""

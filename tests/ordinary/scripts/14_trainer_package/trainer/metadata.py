"""Columns of the census data."""

FEATURES = ["age", "education_num", "hours_per_week", "capital_gain", "capital_loss"]
TARGET = "income_bracket"

"""``smlaunch smoke``: a short job that shows on the real service what smlaunch relies on."""

"""Figures of loommux beside plain ipykernel, measured in one run; ``make bench``."""

"""Logistic regression of scikit-learn, as a Flower app."""

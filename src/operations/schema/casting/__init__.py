"""Casting: values made to fit, by the policy that was asked for."""

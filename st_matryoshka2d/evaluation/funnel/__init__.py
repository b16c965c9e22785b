"""A cheap size makes a shortlist, a better one puts it in order."""

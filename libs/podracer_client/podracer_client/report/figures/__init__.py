"""The figures of a report, by matplotlib: imported only where a report is made, because that takes a second."""

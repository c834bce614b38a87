"""What a user sees of a job: a live table, log lines, or one JSON object a line.

snapshot     a job's figures, ready to be shown, from its messages
numbers      numbers, durations and returns as text
display      the interface, and which display to take
table        the live table (Rich)
plain        log lines
json_lines   one object a line
summary      how a job ended, where its best policy is, and what to do next
listing      aligned columns for `jobs`, `leaderboard`, `report`
leaderboard  the ranking: `leaderboard`
hyperparameters  which are worth a look, and how they are written
catalogue    the lists of `algorithms` and `environments`
"""

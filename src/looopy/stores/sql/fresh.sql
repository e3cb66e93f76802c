CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE contexts (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	epoch BIGINT NOT NULL, 
	turn_count BIGINT NOT NULL, 
	last_position BIGINT NOT NULL, 
	last_seq BIGINT NOT NULL, 
	visible_from BIGINT NOT NULL, 
	cleared_seq BIGINT NOT NULL, 
	open_turn BIGINT, 
	holder TEXT, 
	lease_until BIGINT, 
	owner_actor TEXT, 
	state TEXT NOT NULL, 
	metadata TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	last_activity BIGINT NOT NULL, inbox_last BIGINT DEFAULT '0' NOT NULL, inbox_waiting BIGINT DEFAULT '0' NOT NULL, cancel_turn BIGINT, last_ticket BIGINT DEFAULT '0' NOT NULL, line_until BIGINT, last_write BIGINT, 
	CONSTRAINT pk_contexts PRIMARY KEY (tenant_id, context_id), 
	CONSTRAINT ck_contexts_tenant CHECK (tenant_id <> '')
)
 WITHOUT ROWID

;
CREATE TABLE turns (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	turn BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	continues BIGINT, 
	actor_id TEXT, 
	had_auth BIGINT NOT NULL, 
	outcome TEXT, 
	stop_reason TEXT, 
	start_seq BIGINT NOT NULL, 
	end_seq BIGINT, 
	first_position BIGINT NOT NULL, 
	last_position BIGINT NOT NULL, 
	user_position BIGINT, 
	started_at BIGINT NOT NULL, 
	ended_at BIGINT, 
	usage TEXT NOT NULL, 
	metadata TEXT NOT NULL, 
	CONSTRAINT pk_turns PRIMARY KEY (tenant_id, context_id, turn), 
	CONSTRAINT ck_turns_tenant CHECK (tenant_id <> ''), 
	CONSTRAINT fk_turns_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES contexts (tenant_id, context_id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE messages (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	position BIGINT NOT NULL, 
	turn BIGINT NOT NULL, 
	iteration BIGINT NOT NULL, 
	seq BIGINT NOT NULL, 
	role TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	meta TEXT, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_messages PRIMARY KEY (tenant_id, context_id, position), 
	CONSTRAINT ck_messages_tenant CHECK (tenant_id <> ''), 
	CONSTRAINT fk_messages_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES contexts (tenant_id, context_id) ON DELETE CASCADE
);
CREATE TABLE events (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	turn BIGINT NOT NULL, 
	iteration BIGINT NOT NULL, 
	type TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	position BIGINT, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_events PRIMARY KEY (tenant_id, context_id, seq), 
	CONSTRAINT ck_events_tenant CHECK (tenant_id <> ''), 
	CONSTRAINT fk_events_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES contexts (tenant_id, context_id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE artifacts (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	artifact_id TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	media_type TEXT NOT NULL, 
	status TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	sha256 TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	turn BIGINT NOT NULL, 
	data TEXT, 
	bytes BLOB, 
	CONSTRAINT pk_artifacts PRIMARY KEY (tenant_id, context_id, artifact_id, version), 
	CONSTRAINT ck_artifacts_tenant CHECK (tenant_id <> ''), 
	CONSTRAINT fk_artifacts_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES contexts (tenant_id, context_id) ON DELETE CASCADE
);
CREATE TABLE inbox (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	entry BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	actor_id TEXT, 
	created_at BIGINT NOT NULL, 
	body TEXT NOT NULL, 
	CONSTRAINT pk_inbox PRIMARY KEY (tenant_id, context_id, entry), 
	CONSTRAINT ck_inbox_tenant CHECK (tenant_id <> ''), 
	CONSTRAINT fk_inbox_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES contexts (tenant_id, context_id) ON DELETE CASCADE
);
CREATE TABLE turn_keys (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	turn BIGINT NOT NULL, 
	input_hash TEXT NOT NULL, 
	CONSTRAINT pk_turn_keys PRIMARY KEY (tenant_id, context_id, "key"), 
	CONSTRAINT ck_turn_keys_tenant CHECK (tenant_id <> ''), 
	CONSTRAINT fk_turn_keys_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES contexts (tenant_id, context_id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
CREATE TABLE waiters (
	tenant_id TEXT NOT NULL, 
	context_id TEXT NOT NULL, 
	ticket BIGINT NOT NULL, 
	holder TEXT NOT NULL, 
	alive_until BIGINT NOT NULL, 
	CONSTRAINT pk_waiters PRIMARY KEY (tenant_id, context_id, ticket), 
	CONSTRAINT ck_waiters_tenant CHECK (tenant_id <> ''), 
	CONSTRAINT fk_waiters_contexts FOREIGN KEY(tenant_id, context_id) REFERENCES contexts (tenant_id, context_id) ON DELETE CASCADE
)
 WITHOUT ROWID

;
INSERT INTO alembic_version VALUES ('0003');

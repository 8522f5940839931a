// Package namespace is gpupool's place in a Temporal cluster: the namespace's name, how long it keeps
// closed workflows, and the attributes workflows are searched by.
//
// It works the same against the embedded server (which registers the namespace itself, see
// worker/embedded) and an external cluster, where Ensure registers what is missing.
//
// Not here: connecting (see worker), what the attributes are set to (see workflows).
package namespace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// Default is the namespace's name where the configuration names none.
	Default = "gpupool"

	// Retention is how long a closed workflow's history is kept by default. The record of what
	// happened is gpupool's database; histories are for a look back at how.
	Retention = 72 * time.Hour

	// visible is how long Ensure waits for the cluster to see what it registered.
	visible = time.Minute
)

// Keyword attributes. A value is an id or a word of the vocabulary, never a secret: attributes are
// not encrypted. SQL visibility has ten keywords in all, so a new one needs a reason.
const (
	// AttributeServer is the server's id a process works on.
	AttributeServer = "GpupoolServer"
	// AttributeTenant is the tenant's id a job belongs to.
	AttributeTenant = "GpupoolTenant"
	// AttributeKind is the process's kind: onboard, repair, retire, job, allocator, schedule.
	AttributeKind = "GpupoolKind"
	// AttributeState is the server's phase or the job's state.
	AttributeState = "GpupoolState"
)

// Attributes are the keyword attributes in the order of their worth to a search: the embedded server
// indexes the first two, which select the most.
func Attributes() []string {
	return []string{AttributeServer, AttributeTenant, AttributeKind, AttributeState}
}

// Ensure registers the namespace and its attributes where they are missing; what exists stays as it
// is. retention of zero means Retention. It needs the right to do so on the cluster; where an
// administrator has registered both already, it only reads.
//
// A cluster reads its namespaces every ten seconds or so: Ensure waits until what it registered is
// seen, at most visible. ctx may end it earlier.
func Ensure(ctx context.Context, c client.Client, name string, retention time.Duration) error {
	if retention == 0 {
		retention = Retention
	}
	_, err := c.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: name})
	var missing *serviceerror.NamespaceNotFound
	if errors.As(err, &missing) {
		_, err = c.WorkflowService().RegisterNamespace(ctx, &workflowservice.RegisterNamespaceRequest{
			Namespace:                        name,
			Description:                      "gpupool: servers, jobs and the allocators of a GPU pool",
			WorkflowExecutionRetentionPeriod: durationpb.New(retention),
		})
		var raced *serviceerror.NamespaceAlreadyExists // another process of ours was first
		if errors.As(err, &raced) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("temporal namespace %q: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, visible)
	defer cancel()
	return ensureAttributes(ctx, c, name)
}

// ensureAttributes adds what is missing and returns when all are there.
func ensureAttributes(ctx context.Context, c client.Client, name string) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	added := false
	for {
		missing, err := missingAttributes(ctx, c, name)
		var unseen *serviceerror.NamespaceNotFound // registered, and not read yet
		switch {
		case errors.As(err, &unseen):
		case err != nil:
			return fmt.Errorf("temporal namespace %q: %w", name, err)
		case len(missing) == 0:
			return nil
		case !added:
			_, err := c.OperatorService().AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{Namespace: name, SearchAttributes: missing})
			var raced *serviceerror.AlreadyExists
			if err != nil && !errors.As(err, &raced) {
				return fmt.Errorf("temporal namespace %q: add search attributes: %w", name, err)
			}
			added = true
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("temporal namespace %q: registered, but the cluster doesn't show it: %w", name, ctx.Err())
		case <-tick.C:
		}
	}
}

func missingAttributes(ctx context.Context, c client.Client, name string) (map[string]enums.IndexedValueType, error) {
	have, err := c.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: name})
	if err != nil {
		return nil, err
	}
	missing := map[string]enums.IndexedValueType{}
	for _, attribute := range Attributes() {
		switch kind, ok := have.GetCustomAttributes()[attribute]; {
		case !ok:
			missing[attribute] = enums.INDEXED_VALUE_TYPE_KEYWORD
		case kind != enums.INDEXED_VALUE_TYPE_KEYWORD:
			return nil, fmt.Errorf("search attribute %s is %s; it must be a keyword (hint: rename the other one, or give gpupool a namespace of its own)", attribute, kind)
		}
	}
	return missing, nil
}

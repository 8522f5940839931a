package bmc

import (
	"fmt"
	"net/http"
)

// task is a scripted Redfish task: each read shows the next step, the last one stays.
type task struct {
	path  string
	steps []Doc
	at    int
}

// AddTask serves a task that walks through steps, one a read, and stays on the last; a nil step is 404 (a BMC that was
// reset and forgot). It returns the task's path.
func (s *Server) AddTask(steps ...Doc) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	path := fmt.Sprintf("/redfish/v1/TaskService/Tasks/lab%d", s.nextID)
	s.tasks[path] = &task{path: path, steps: steps}
	return path
}

// get shows the present step. The caller holds the server's mu.
func (t *task) get() *reply {
	if len(t.steps) == 0 {
		return notFound(t.path)
	}
	step := t.steps[t.at]
	if t.at < len(t.steps)-1 {
		t.at++
	}
	if step == nil {
		return notFound(t.path)
	}
	d := Doc{"@odata.id": t.path, "@odata.type": "#Task.v1_4_3.Task", "Id": t.path[len("/redfish/v1/TaskService/Tasks/"):], "Name": "Task"}
	merge(d, clone(step).(Doc))
	return &reply{status: http.StatusOK, doc: d}
}
